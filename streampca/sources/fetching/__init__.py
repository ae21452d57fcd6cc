"""Stored chunks of remote stores: requested ahead of their use, many at once, within a number of bytes."""
