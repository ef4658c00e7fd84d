"""The files in deploy/ and the workflow: they say what runs, and what they say works."""
