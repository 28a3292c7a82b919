"""Scripts that train and act with other libraries, in their own interpreters."""
