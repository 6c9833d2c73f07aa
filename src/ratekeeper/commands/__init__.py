"""The commands of ``ratekeeper``, one file each.  A command imports what it needs when it runs."""
