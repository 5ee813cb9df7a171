"""Reading server.yaml: settings with dots in their names, or nested, or both.

    log:
      dirs: [/data/a, /data/b]
      segment.bytes: 1GiB
    listener.security.protocol.map:
      INTERNAL: PLAINTEXT

Scalars are taken as they are written, so that no value changes by YAML's own ideas of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from pybroker.config.properties import Entry

# Settings whose value is itself a mapping; these may be written as one.
_MAPPINGS = ("listener.security.protocol.map", "max.connections.per.ip.overrides")
_BOOLEANS = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def parse_yaml(text: str) -> list[Entry]:
    """All settings in their order; null sets nothing. Raises ValueError, which names the line."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise ValueError(f"{where}{getattr(error, 'problem', None) or error}") from None
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"line {root.start_mark.line + 1}: must hold settings as `name: value`")
    return list(_entries("", root, set()))


def _entries(prefix: str, node: yaml.MappingNode, above: set[int]) -> Iterator[Entry]:
    if id(node) in above:
        raise ValueError(f"line {node.start_mark.line + 1}: an alias that contains itself")
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or not key.value:
            raise ValueError(f"line {line}: the name of a setting must be text")
        name = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode):
            if name in _MAPPINGS:
                pairs = (f"{_scalar(name, one)}:{_scalar(name, other)}" for one, other in value.value)
                yield Entry(name, ",".join(pairs), line)
            else:
                yield from _entries(f"{name}.", value, {*above, id(node)})
        elif isinstance(value, yaml.SequenceNode):
            yield Entry(name, ",".join(_scalar(name, item) for item in value.value), line)
        elif value.tag != "tag:yaml.org,2002:null":
            yield Entry(name, _scalar(name, value), line)


def _scalar(name: str, node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError(f"line {node.start_mark.line + 1}: {name} can't hold lists or mappings inside")
    if node.tag == "tag:yaml.org,2002:bool":
        return _BOOLEANS.get(str(node.value).lower(), str(node.value))
    return str(node.value)
