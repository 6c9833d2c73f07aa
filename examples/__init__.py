"""Small programs that show a thing at work; each runs by itself, and in the tests."""
