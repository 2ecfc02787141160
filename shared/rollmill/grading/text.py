def without_surrogates(text: str) -> str:
    """Replace lone surrogates, which neither UTF-8 nor JSON can carry, by question marks."""
    return text.encode(errors="replace").decode()
