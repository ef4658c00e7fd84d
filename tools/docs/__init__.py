"""The documentation: reference pages made from the source, and the static site."""
