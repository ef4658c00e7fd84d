"""Helpers that the tests share: real servers, the whole keyspace, the invariant."""
