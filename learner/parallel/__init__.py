"""Several learner processes that learn one policy."""
