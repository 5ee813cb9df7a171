"""From files, environment and command line to one BrokerConfig.

Later ones win: default, file, environment, `--override` (and the options that stand for one). Everything wrong is
told at once, each with its key, its value, what is allowed, and where it was written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from pybroker.config import definitions, values
from pybroker.config.broker import BrokerConfig, Static, find_setting
from pybroker.config.consistency import contradictions
from pybroker.config.errors import ConfigError, ConfigErrors
from pybroker.config.foreign import FOREIGN, SILENT_NAMES, SILENT_PARTS, SILENT_PREFIXES, SILENT_SUFFIXES
from pybroker.config.modes import LATER, NOTHING
from pybroker.config.properties import Entry, parse_properties

# Settings of Kafka's plug-ins, which its own table doesn't know either. They are kept, and served later.
_PLUGIN_NAMES = ("super.users", "allow.everyone.if.no.acl.found")
_PLUGIN_PREFIXES = ("listener.name.", "rsm.config.", "rlmm.config.", "config.providers.", "confluent.")


def load(
    file: str | None = None,
    overrides: Sequence[str] = (),
    *,
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, Static] | None = None,
    port: int | None = None,
) -> BrokerConfig:
    """Read all of it. `overrides` are `key=value`; `options` are settings that other command line options stand for;
    `port` is the first listener's.

    Raises ConfigErrors with every reason not to start.
    """
    loading = _Loading()
    if file is not None:
        loading.file(file)
    loading.environment(os.environ if environ is None else environ)
    for override in overrides:
        name, equals, value = override.partition("=")
        if equals and name.strip():
            loading.put(name.strip(), value, "--override")
        else:
            loading.errors.append(f"--override {override}: must be of the form key=value")
    for name, static in (options or {}).items():
        loading.put(name, static.value, static.origin)
    return loading.finish(port)


class _Loading:
    """What has been read so far."""

    def __init__(self) -> None:
        self.found: dict[str, Static] = {}
        self.foreign: dict[str, Static] = {}
        """By the real name, which counts instead wherever it is set too."""
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def file(self, path: str) -> None:
        name = os.path.basename(path)
        try:
            with open(path, "rb") as file:
                entries = _parse_file(name, file.read())
        except OSError as error:
            self.errors.append(f"{path}: {error.strerror or error}")
            return
        except ValueError as error:
            self.errors.append(f"{path}, {error}")
            return
        lines: dict[str, int] = {}
        for entry in entries:
            if entry.name in lines:
                twice = f"on lines {lines[entry.name]} and {entry.line}: the last counts"
                self.warnings.append(f"{entry.name} stands twice in {name}, {twice}")
            lines[entry.name] = entry.line
            self.put(entry.name, entry.value, f"{name}:{entry.line}")

    def environment(self, environ: Mapping[str, str]) -> None:
        for variable in sorted(environ):
            if not variable.startswith("KAFKA_"):
                continue
            name = _setting_of_variable(variable)
            if name is not None:
                self.put(name, environ[variable], f"environment {variable}")
            elif not _meant_for_others(variable):
                guess = nearest(variable[6:].lower().replace("_", "."))
                hint = f"; did you mean KAFKA_{guess.upper().replace('.', '_')}?" if guess else ""
                self.warnings.append(f"environment {variable} is no setting{hint}")

    def put(self, name: str, value: str, origin: str) -> None:
        if (meant := FOREIGN.get(name)) is not None:
            known, translate = meant
            translated = translate(value)
            self.warnings.append(
                f"{name} ({origin}) is no setting of Kafka: taken for the nearest one, {known}={translated}"
            )
            self.foreign[known] = Static(translated, f"{origin} ({name})")
            return
        unknown = find_setting(name) is None and name not in _PLUGIN_NAMES
        if unknown and not name.startswith(_PLUGIN_PREFIXES):
            guess = nearest(name)
            hint = f"; did you mean {guess}?" if guess else ""
            self.warnings.append(f"{name} ({origin}) is no setting that this broker knows{hint}")
        self.found[name] = Static(value, origin)

    def port(self, port: int) -> None:
        """Give the first listener another port."""
        listeners = self.found.get("listeners")
        text, origin = listeners or Static(definitions.setting("listeners").default or "", "default")
        first, comma, others = text.partition(",")
        address, colon, _ = first.rpartition(":")
        if colon:  # else it is malformed, which is told later
            origin = "--port" if listeners is None else f"{origin}, --port"
            self.found["listeners"] = Static(f"{address}:{port}{comma}{others}", origin)

    def finish(self, port: int | None = None) -> BrokerConfig:
        self.found = {**self.foreign, **self.found}
        if port is not None:
            self.port(port)
        for name, (value, origin) in self.found.items():
            setting = find_setting(name)
            if setting is None:
                continue
            try:
                plain = values.without_unit(name, setting.kind, value)
                setting.parse(plain)
                self.found[name] = Static(plain, origin)
            except ConfigError as error:
                shown = "[hidden]" if setting.sensitive else value
                reason = error.message.partition(f" for configuration {name}: ")[2]
                text = f"{name}={shown} ({origin}): {reason}"
                if "must be" not in reason and "either" not in reason:
                    text += f"; allowed is {values.allowed(setting.kind, setting.valid)}"
                self.errors.append(text)
        if self.errors:
            raise ConfigErrors(self.errors)
        self._identity()
        config = BrokerConfig(self.found, self.warnings)
        self.errors.extend(self._refusals(config))
        self.errors.extend(contradictions(config))
        if self.errors:
            raise ConfigErrors(self.errors)
        config.warnings.extend(_not_served(config))
        return config

    def _identity(self) -> None:
        """broker.id and node.id are two names of one thing; a Kafka 4 file only has the second."""
        broker, node = self.found.get("broker.id"), self.found.get("node.id")
        if broker is None and node is not None:
            self.found["broker.id"] = node
        elif node is None and broker is not None:
            self.found["node.id"] = broker
        if "process.roles" in self.found:
            self.warnings.append(
                f"process.roles ({self.found['process.roles'].origin}): this file is for KRaft. node.id is taken for "
                "broker.id, controller.quorum.* is ignored, and listeners in controller.listener.names are not opened."
            )

    def _refusals(self, config: BrokerConfig) -> Iterable[str]:
        """What can't be ignored without doing something else than what was asked for."""
        roles = config.list("process.roles")
        if roles and "broker" not in roles:
            yield f"process.roles={','.join(roles)} ({self.found['process.roles'].origin}): this is a broker only"
        try:
            secured = [str(endpoint) for endpoint in config.listeners if endpoint.security_protocol != "PLAINTEXT"]
        except ConfigError:
            return  # contradictions() tells it
        if secured:
            yield f"listeners={','.join(secured)} ({config.source('listeners')}): only PLAINTEXT is served yet"


def _parse_file(name: str, content: bytes) -> list[Entry]:
    """Raises ValueError, which says where (UnicodeDecodeError is one)."""
    content = content.removeprefix(b"\xef\xbb\xbf")
    if name.lower().endswith((".yaml", ".yml")):
        from pybroker.config.yaml_file import parse_yaml  # 15 ms that most starts don't need

        return parse_yaml(content.decode("utf-8"))
    try:
        return parse_properties(content.decode("utf-8"))
    except UnicodeDecodeError:
        return parse_properties(content.decode("latin-1"))  # what Java takes such a file for


def _setting_of_variable(variable: str) -> str | None:
    """KAFKA_LOG_SEGMENT_BYTES → log.segment.bytes, None for what is no setting."""
    name = variable[6:].lower().replace("_", ".")
    if definitions.find(name) is not None or name in FOREIGN or name in _PLUGIN_NAMES:
        return name
    if name == "zookeeper.clientcnxnsocket":
        return "zookeeper.clientCnxnSocket"
    return None


def _meant_for_others(variable: str) -> bool:
    return (
        variable in SILENT_NAMES
        or variable.startswith(SILENT_PREFIXES)
        or variable.endswith(SILENT_SUFFIXES)
        or any(part in variable for part in SILENT_PARTS)
    )


def nearest(name: str) -> str | None:
    """The known setting that a mistyped one most likely meant."""
    from difflib import get_close_matches  # only when somebody mistyped

    found = get_close_matches(name, [*definitions.names()], n=1, cutoff=0.75)
    return found[0] if found else None


def _not_served(config: BrokerConfig) -> list[str]:
    """One line each for settings that were set to something else than their default and do nothing."""
    names: dict[str, list[str]] = {LATER: [], NOTHING: []}
    for name in config.static:
        quorum = name.startswith("controller.quorum.") and config.is_set("process.roles")  # told already
        use = _use(config, name)
        if use in names and not quorum:
            names[use].append(name)
    texts = {
        LATER: "known but not served yet, so without effect: ",
        NOTHING: "without meaning for this broker, so without effect: ",
    }
    told = [texts[use] + ", ".join(sorted(found)) for use, found in names.items() if found]
    if "authorizer.class.name" in names[LATER]:
        told.append("authorizer.class.name is set, but every request is allowed: there is no authorizer yet")
    return told


def _use(config: BrokerConfig, name: str) -> str | None:
    """What is made of a setting that was set; None for one that is unknown or at its default."""
    setting = find_setting(name)
    if setting is None:
        return LATER if name in _PLUGIN_NAMES or name.startswith(_PLUGIN_PREFIXES) else None
    default = definitions.EMBEDDED_DEFAULTS.get(name, setting.default)
    at_default = setting.name == name and default is not None and config.get(name) == setting.parse(default)
    return None if at_default else setting.use
