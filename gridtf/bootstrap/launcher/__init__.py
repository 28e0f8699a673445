"""The first host: an attempt from the allocation to the verdict."""
