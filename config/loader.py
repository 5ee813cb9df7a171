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
from pybroker.config.modes import LATER, NOTHING, PASSWORD
from pybroker.config.properties import Entry, parse_properties

# Settings of Kafka's plug-ins, which its own table doesn't know either. They are kept, and served later.
_PLUGIN_NAMES = ("super.users", "allow.everyone.if.no.acl.found")
_PLUGIN_PREFIXES = ("listener.name.", "rsm.config.", "rlmm.config.", "config.providers.", "confluent.")
_NO_ZOOKEEPER = (
    "zookeeper.connect is set ({origin}), and clusters on ZooKeeper are not served yet. "
    "`--override zookeeper.connect=` uses the embedded metadata store instead."
)


def load(
    file: str | None = None,
    overrides: Sequence[str] = (),
    *,
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, Static] | None = None,
) -> BrokerConfig:
    """Read all of it. `overrides` are `key=value`; `options` are settings that other command line options stand for.

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
    return loading.finish()


class _Loading:
    """What has been read so far."""

    def __init__(self) -> None:
        self.found: dict[str, Static] = {}
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def file(self, path: str) -> None:
        name = os.path.basename(path)
        try:
            with open(path, encoding="utf-8-sig") as file:
                text = file.read()
            entries = _parse_file(name, text)
        except UnicodeDecodeError:
            self.errors.append(f"{path}: not a text file in UTF-8")
            return
        except OSError as error:
            self.errors.append(f"{path}: {error.strerror or error}")
            return
        except ValueError as error:
            self.errors.append(f"{path}, {error}")
            return
        lines: dict[str, int] = {}
        for entry in entries:
            if entry.name in lines:
                self.warnings.append(
                    f"{entry.name} stands twice in {name}, on lines {lines[entry.name]} and {entry.line}: the last counts"
                )
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
            # The real name counts where both stand, in whatever order.
            if known in self.found and not self.found[known].origin.endswith(")"):
                return
            self.found[known] = Static(translated, f"{origin} ({name})")
            return
        setting = find_setting(name)
        if setting is None:
            if name not in _PLUGIN_NAMES and not name.startswith(_PLUGIN_PREFIXES):
                guess = nearest(name)
                hint = f"; did you mean {guess}?" if guess else ""
                self.warnings.append(f"{name} ({origin}) is no setting that this broker knows{hint}")
            self.found[name] = Static(value, origin)
            return
        self.found[name] = Static(value, origin)

    def finish(self) -> BrokerConfig:
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
                self.errors.append(
                    f"{name}={shown} ({origin}): {reason}. Allowed: {values.allowed(setting.kind, setting.valid)}."
                )
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
        if (config.opt_str("zookeeper.connect") or "").strip():
            yield _NO_ZOOKEEPER.format(origin=self.found["zookeeper.connect"].origin)
        roles = config.list("process.roles")
        if roles and "broker" not in roles:
            yield f"process.roles={','.join(roles)} ({self.found['process.roles'].origin}): this is a broker only"
        try:
            secured = [str(endpoint) for endpoint in config.listeners if endpoint.security_protocol != "PLAINTEXT"]
        except ConfigError:
            return  # contradictions() tells it
        if secured:
            yield f"listeners={','.join(secured)} ({config.source('listeners')}): only PLAINTEXT is served yet"


def _parse_file(name: str, text: str) -> list[Entry]:
    if name.lower().endswith((".yaml", ".yml")):
        from pybroker.config.yaml_file import parse_yaml  # 15 ms that most starts don't need

        return parse_yaml(text)
    return parse_properties(text)


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
    for name, static in config.static.items():
        if name.startswith("controller.quorum.") and config.is_set("process.roles"):
            continue
        setting = find_setting(name)
        use = LATER if setting is None and name.startswith(_PLUGIN_PREFIXES) or name in _PLUGIN_NAMES else None
        if setting is not None:
            default = setting.default
            same = (
                default is not None
                and setting.kind != PASSWORD
                and setting.parse(static.value) == setting.parse(default)
            )
            use = None if same else setting.use
        if use in names:
            names[use].append(name)
    texts = {
        LATER: "known but not served yet, so without effect: ",
        NOTHING: "without meaning for this broker, so without effect: ",
    }
    return [texts[use] + ", ".join(sorted(found)) for use, found in names.items() if found]
