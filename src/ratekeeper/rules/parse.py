"""The content of a rules file -> Settings, or an InvalidRules that names the place, what was expected and what to do.

``schema.py`` says what a file may contain, and ``validate.py`` checks it; here is what a schema cannot say.  A file is
accepted as a whole or refused as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, shown
from ratekeeper.rules.parse_identity import IdentityParser
from ratekeeper.rules.parse_response import parse_response
from ratekeeper.rules.parse_rule import RuleParser
from ratekeeper.rules.parse_values import ValueParser
from ratekeeper.rules.schema import RULES
from ratekeeper.rules.settings import Settings
from ratekeeper.rules.short_turns import pause
from ratekeeper.rules.validate import Attempts, NeedlessKey, Place, fits, without
from ratekeeper.rules.warn import warn

if TYPE_CHECKING:
    from ratekeeper.rules.parse_values import Functions
    from ratekeeper.rules.rule import Rule


def parse(
    content: Mapping[str, Any], name: str = "rules", functions: Functions | None = None, folder: Path | None = None
) -> Settings:
    """Understand the content of a rules file.  It may name ``functions``, and files relative to ``folder``."""
    root = Place(f"{name}: ", locate=getattr(content, "locate", None))
    content = with_modes(content)
    functions = functions or {}
    if not (isinstance(functions, Mapping) and all(callable(function) for function in functions.values())):
        raise InvalidInput(f"functions: expected a dictionary of functions by their names, got {shown(functions)}.")
    attempt = Attempts()
    attempt(fits, root, content, RULES)
    mistakes = []
    for mistake in attempt.mistakes:
        if isinstance(mistake, NeedlessKey):
            content = dict(without(content, mistake.keys))
        else:
            mistakes.append(mistake)
    unfit = {mistake.keys[1] for mistake in mistakes if len(mistake.keys) > 1 and mistake.keys[0] == "rules"}
    if len(unfit) < len({mistake.keys[:2] for mistake in mistakes}):
        attempt.finish()  # what is wrong outside of the rules would make other settings look wrong
    values = ValueParser(functions)
    identities = IdentityParser(root, content, values, folder or Path())
    identity = attempt(identities.identity)
    rules = attempt(parse_rules, root.key("rules"), content["rules"], RuleParser(content, values), unfit)
    response = attempt(parse_response, root.key("response"), content.get("response", {}), values)
    exempt = attempt(values.exempt, root.key("exempt"), content.get("exempt", ()))
    attempt.finish()
    return Settings(
        rules=rules,
        identity=identity,
        store=content.get("store", "memory://"),
        exempt=exempt,
        response=response,
        secret=content.get("secret"),
        on_store_error=content.get("on_store_error", "local"),
        tier_default=content["tiers"]["default"] if "tiers" in content else None,
        warnings=(*identities.warnings, *warn(content, rules, exempt, identity)),
    )


def parse_rules(place: Place, tables: list[dict[str, Any]], parser: RuleParser, unfit: set[Any]) -> tuple[Rule, ...]:
    """The rules, except for those with the numbers ``unfit``: they have mistakes that were found before."""
    names: dict[str, int] = {}
    rules = []
    attempt = Attempts()
    for number, table in enumerate(tables):
        if number in unfit:
            continue
        pause()
        here = place.key(number).of_rule(table["name"])
        if table["name"] in names:
            other = f"rules[{names[table['name']]}] has it."
            attempt(here.key("name").refuse, "a name of its own", table["name"], other)
        names[table["name"]] = number
        rules.append(attempt(parser.rule, here, table))
    attempt.finish()
    return tuple(rules)


def with_modes(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content, where YAML's ``mode: off``, which is False, is the mode that was written."""
    copied, rules = dict(content), content.get("rules")
    if isinstance(rules, (list, tuple)):
        copied["rules"] = [
            {**rule, "mode": "off"} if isinstance(rule, dict) and rule.get("mode") is False else rule for rule in rules
        ]
    return copied
