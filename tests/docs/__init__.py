"""The documentation: every block of code, every example, every link, the reference, the wheel."""
