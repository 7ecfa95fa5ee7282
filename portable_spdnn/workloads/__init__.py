"""Networks and inputs from files or generated, as a request asks."""
