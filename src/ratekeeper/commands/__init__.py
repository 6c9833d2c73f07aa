"""The commands of ``ratekeeper``: a file each, which imports what it needs when it is called."""
