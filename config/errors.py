"""What can be wrong with a setting. The texts are Kafka's wherever Kafka has one, since clients see them."""

from __future__ import annotations

from collections.abc import Sequence


class ConfigError(ValueError):
    """A value that Kafka refuses too (its ConfigException and InvalidConfigurationException: error 40)."""

    @property
    def message(self) -> str:
        return str(self.args[0])


class NotDynamic(ConfigError):
    """A setting that can't be changed where it was asked for (Kafka: InvalidRequestException, error 42)."""


class ConfigErrors(ConfigError):
    """Everything that keeps the broker from starting, one text per setting."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = tuple(errors)


def invalid(name: str, value: object, why: str) -> ConfigError:
    """`value` is shown as Kafka shows it, so pass text or a number that Java prints alike."""
    return ConfigError(f"Invalid value {'null' if value is None else value} for configuration {name}: {why}")
