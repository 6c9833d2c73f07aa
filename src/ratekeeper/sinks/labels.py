"""Labels of metrics, bounded in number and in length, whatever a caller or a framework puts into a name.

Every page of metrics is written from them, so a label is always printable text that can be encoded: one bad name must
not hide all others.
"""

from __future__ import annotations

MOST_LABELS = 1024
LONGEST_LABEL = 200
OTHER = "other"  # stands for all names beyond the bound


class Labels:
    """The names of one kind that have been seen, and the label of each."""

    __slots__ = ("labels", "most")

    def __init__(self, most: int = MOST_LABELS) -> None:
        self.most = most
        self.labels: dict[str, str] = {}

    def of(self, name: str) -> str:
        """The label of ``name``: itself, if it is short and printable and not one too many."""
        label = self.labels.get(name)
        if label is None:
            if len(self.labels) >= self.most:
                return OTHER
            label = clean(name)
            if label == name:
                self.labels[name] = label
            elif label not in self.labels:  # the name itself is not kept: it may be long
                self.labels[label] = label
        return label


def clean(text: str) -> str:
    """Printable text of bounded length, with escapes in place of what is not printable."""
    short = text[:LONGEST_LABEL]
    if short.isprintable():
        return short
    return "".join([letter if letter.isprintable() else ascii(letter)[1:-1] for letter in short])[:LONGEST_LABEL]
