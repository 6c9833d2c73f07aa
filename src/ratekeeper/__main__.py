"""``python -m ratekeeper`` is ``ratekeeper``."""

from ratekeeper.cli import main

if __name__ == "__main__":
    main()
