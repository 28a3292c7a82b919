"""Actors: processes that step environments and send experience to replay; and evaluation."""
