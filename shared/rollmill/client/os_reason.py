import os
import ssl


def os_reason(error: OSError) -> str:
    """Say what the system says of a failed connection; asyncio's own words repeat the address instead."""
    own_words = isinstance(error, ssl.SSLError) or not error.errno or error.errno < 0
    return str(error) if own_words else os.strerror(error.errno or 0)
