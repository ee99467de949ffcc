"""YAML whose scalars are words as they are written, since YAML 1.1 reads 21005 for `5:50:5`, and True for `on`."""

from __future__ import annotations

from typing import Any

import yaml


class Word(str):
    """A scalar of a file as it is written: `1.10`, `5:50:5`, `on`."""

    meant: Any
    """What YAML takes it for: 1.1, 21005, True."""


class Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Its scalars are words, and a key is in a mapping once."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]:
            if key.value in seen:
                raise yaml.composer.ComposerError(None, None, f"'{key.value}' is there twice", key.start_mark)
            seen.add(key.value)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        if "\0" in node.value:
            raise yaml.constructor.ConstructorError(None, None, "a word holds a NUL", node.start_mark)
        word = Word(node.value)
        try:
            word.meant = super().construct_object(node, deep)
        except ValueError:  # such as the 32nd of a month
            word.meant = node.value
        return word
