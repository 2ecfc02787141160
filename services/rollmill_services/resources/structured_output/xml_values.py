"""XML as a JSON value: the root's elements and attributes are the properties of the schema's object."""

from typing import TYPE_CHECKING

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill_services.resources.structured_output.text_values import member_schema, typed, types, useful

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


def xml_value(text: str, schema: JsonValue) -> JsonValue:
    """Read a document. The name of its root does not matter.

    Raises:
        ValueError: it is not well-formed, declares entities or a document type, or mixes text with elements.
    """
    import defusedxml.ElementTree
    from defusedxml.common import DefusedXmlException

    try:
        root = defusedxml.ElementTree.fromstring(text.strip(), forbid_dtd=True)
    except (DefusedXmlException, defusedxml.ElementTree.ParseError) as error:
        raise ValueError(str(error) or type(error).__name__) from None
    return _value(root, schema, schema)


def _value(element: "Element", schema: JsonValue, root: JsonValue) -> JsonValue:
    flat = useful(schema, root)
    if "array" in types(flat):
        return [_value(child, flat.get("items"), root) for child in element]
    if len(element) or element.attrib:
        return _object(element, flat, root)
    text = element.text or ""
    empty_object = "object" in types(flat) and not text.strip()
    return {} if empty_object else typed(text, flat, root)


def _object(element: "Element", schema: JsonObject, root: JsonValue) -> JsonObject:
    if any((part or "").strip() for part in (element.text, *(child.tail for child in element))):
        raise ValueError(f"text stands beside the elements or attributes of <{element.tag}>")
    made: JsonObject = {name: typed(text, member_schema(schema, name), root) for name, text in element.attrib.items()}
    for name in dict.fromkeys(child.tag for child in element):
        children = [child for child in element if child.tag == name]
        wanted = member_schema(schema, name)
        items = useful(useful(wanted, root).get("items"), root)
        if "array" in types(useful(wanted, root)) and not (len(children) == 1 and _holds_members(children[0], items)):
            made[name] = [_value(child, items, root) for child in children]
        elif len(children) > 1 or name in made:
            raise ValueError(f"<{element.tag}> has <{name}> twice")
        else:
            made[name] = _value(children[0], wanted, root)
    return made


def _holds_members(element: "Element", items: JsonObject) -> bool:
    """Say whether an element is a list of members, not itself the one member of a list: `<tags><tag>a</tag></tags>`."""
    names = {child.tag for child in element}
    if not names:
        return not (element.text or "").strip() and not element.attrib
    return len(names) == 1 and not names & set(items.get("properties") or {})
