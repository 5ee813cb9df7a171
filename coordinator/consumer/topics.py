"""What of the cluster's topics a consumer group sees, and subscriptions by pattern (RE2's syntax)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from pybroker.coordinator.consumer.catalog import TopicCatalog
from pybroker.protocol.errors import Errors, KafkaError


def topics_hash(names: Iterable[str], catalog: TopicCatalog) -> int:
    """A number for all that a group has to know of its topics: another one means that it must assign anew.

    0 where none of them exists. (Kafka's hash is another, so that a group that moves between the two is assigned once
    more.)
    """
    found = False
    digest = blake2b(digest_size=8)
    for name in sorted(names):
        topic = catalog.topic(name)
        if topic is not None:
            found = True
            digest.update(f"{len(name)}:{name}:{topic.partitions}:".encode())
            digest.update(topic.topic_id)
    return int.from_bytes(digest.digest(), "big", signed=True) if found else 0


# RE2's words for what is wrong with a pattern → RE2/J's, which Kafka's clients see.
_REASONS = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "unexpected )": "regexp/syntax: internal error",
    "trailing \\": "trailing backslash at end of expression",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid repetition size": "invalid repeat count",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
    "invalid character class": "invalid character class range",
}


@lru_cache(maxsize=256)
def compile_regex(pattern: str) -> Any:
    """The compiled pattern. Raises KafkaError INVALID_REGULAR_EXPRESSION; `re2` is imported here, since few need it."""
    try:
        import re2
    except ImportError:
        raise KafkaError(
            Errors.INVALID_REGULAR_EXPRESSION,
            "Subscriptions by pattern need the package google-re2, which the broker does not have.",
        ) from None
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        text = error.args[0]
        said = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        reason = next((said.removesuffix(": " + each) for each in _tails(pattern, said)), said)
        raise KafkaError(
            Errors.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {_REASONS.get(reason, reason)}.",
        ) from None


def _tails(pattern: str, said: str) -> Iterable[str]:
    """What RE2 may have added to its reason: a part of the pattern."""
    return (said[at + 2 :] for at in range(len(said)) if said.startswith(": ", at) and said[at + 2 :] in pattern)


def resolve_regex(pattern: str, catalog: TopicCatalog, may_see: Callable[[str], bool]) -> list[str]:
    """The topics whose whole name matches, as far as the member may describe them."""
    matches = compile_regex(pattern).fullmatch
    return sorted(name for name in catalog.names() if matches(name) and may_see(name))
