import re

_SPELLINGS = """
m: meter metre; km: kilometer kilometre; cm: centimeter centimetre; mm: millimeter millimetre; dm: decimeter decimetre
μm: micrometer micrometre micron; nm: nanometer nanometre; in: inch inche; ft: foot feet; yd: yard; mi: mile
g: gram gramme; kg: kilogram kilo; mg: milligram; μg: microgram; t: ton tonne; lb: pound; oz: ounce
s: sec second; ms: millisecond; μs: microsecond; ns: nanosecond; min: minute; h: hr hour; day: d; week: wk; month:
year: yr; l: liter litre; ml: milliliter millilitre; dl: deciliter decilitre; cl: centiliter centilitre
gal: gallon; pt: pint; qt: quart; n: newton; kn: kilonewton; j: joule; kj: kilojoule; mj: megajoule; w: watt
kw: kilowatt; mw: megawatt; kwh:; v: volt; kv: kilovolt; mv: millivolt; a: amp ampere; ma: milliamp milliampere
ω: ohm; hz: hertz; khz: kilohertz; mhz: megahertz; ghz: gigahertz; pa: pascal; kpa: kilopascal; hpa:; mpa:; bar:
atm: atmosphere; mol: mole; mmol: millimole; k: kelvin; °c: celsius; °f: fahrenheit; °: deg degree; rad: radian
cal: calorie; kcal: kilocalorie; ev: electronvolt; kev:; mev:; gev:; b: byte; kb: kilobyte; mb: megabyte
gb: gigabyte; tb: terabyte; bit:; km/h: kmh kph; mi/h: mph; rpm:; knot: kn; %: percent pct; usd: $ dollar
eur: € euro; gbp: £; jpy: ¥ yen; inr: ₹ rupee; cent: ¢
"""
_TEMPERATURE = re.compile(r"(?:°|\bdeg(?:ree)?s?\b)\s*(?=(?:c|f|celsius|fahrenheit)\b)")
_PER = re.compile(r"\s*(?:/|\bper\b)\s*")
_WORD = re.compile(r"([^\d^-]+)\^?\(?(-?[1-4])?\)?")
_POWERS = {"square": "2", "sq": "2", "squared": "2", "cubic": "3", "cubed": "3"}


def _read_table() -> dict[str, str]:
    spellings: dict[str, str] = {}
    for entry in _SPELLINGS.replace("\n", ";").split(";"):
        unit, _, others = entry.strip().partition(":")
        for spelling in (unit, *others.split()):
            spellings.setdefault(spelling, unit)
    del spellings[""]
    return spellings


_UNITS = _read_table()


def canonical_unit(text: str) -> str | None:
    """Return one spelling for a lower-case unit, as `km/h` for `kilometers per hour`; None when it is unknown.

    No text is the unit of a bare number, and returned as it is.
    """
    if not text.strip():
        return ""
    text = _TEMPERATURE.sub("°", text)
    parts = [_product(part.split()) for part in _PER.split(text.strip())]
    known = [part for part in parts if part]
    return "/".join(known) if len(known) == len(parts) else None


def _product(words: list[str]) -> str | None:
    units: list[str] = []
    power = ""
    for word in words:
        if word in _POWERS and word.endswith("ed") and units:
            units[-1] += _POWERS[word]
        elif word in _POWERS:
            power = _POWERS[word]
        elif unit := _single(word):
            units.append(unit + power)
            power = ""
        else:
            return None
    return "·".join(units) or None


def _single(word: str) -> str | None:
    found = _WORD.fullmatch(word)
    if found is None:
        return None
    name = found[1]
    known = (_UNITS.get(spelling) for spelling in (name, name.removesuffix("s"), f"°{name}", name.removeprefix("°")))
    unit = next((unit for unit in known if unit), None)  # 20 c, °c and °celsius are one unit
    return unit + (found[2] or "") if unit else None
