_NAMES = """
al alabama, ak alaska, az arizona, ar arkansas, ca california, co colorado, ct connecticut, de delaware,
dc district of columbia, fl florida, ga georgia, hi hawaii, id idaho, il illinois, in indiana, ia iowa, ks kansas,
ky kentucky, la louisiana, me maine, md maryland, ma massachusetts, mi michigan, mn minnesota, ms mississippi,
mo missouri, mt montana, ne nebraska, nv nevada, nh new hampshire, nj new jersey, nm new mexico, ny new york,
nc north carolina, nd north dakota, oh ohio, ok oklahoma, or oregon, pa pennsylvania, ri rhode island,
sc south carolina, sd south dakota, tn tennessee, tx texas, ut utah, vt vermont, va virginia, wa washington,
wv west virginia, wi wisconsin, wy wyoming
"""
_BY_ABBREVIATION = {
    abbreviation: name for abbreviation, _, name in (entry.strip().partition(" ") for entry in _NAMES.split(","))
}


def full_name(text: str) -> str:
    """Return the lower-case name of the US state that a lower-case postal abbreviation stands for, else the text."""
    return _BY_ABBREVIATION.get(text, text)
