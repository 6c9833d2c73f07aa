"""A conformance suite for rate limiters, in any language: cases from an exact model, laws on recorded histories."""

VERSION = "1"  # of the cases, the laws and the line protocol together
