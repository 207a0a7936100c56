"""The operations of the API, by subject. Each module has ``ENDPOINTS``."""
