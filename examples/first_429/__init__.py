"""The least that a framework needs to answer 429, with ratekeeper and with the library that is best known for it.

Each file is one application whose view ``/`` takes two calls a minute of a client.
"""
