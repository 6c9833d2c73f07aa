"""One file for each published claim.  ``python -m bench [name ...]`` runs them; ``python -m bench`` runs all."""
