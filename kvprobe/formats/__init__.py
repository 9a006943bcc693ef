"""Parsers for what others define: pure functions of text."""
