"""The options by which commands reach Kafka: written once, added to any command.

    @with_kafka
    def command(query: ..., clients: KafkaClients) -> None: ...

has the options of this module in place of `clients`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from services.security import KafkaClients

KAFKA = "Kafka security"


def with_kafka(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `clients` is made from options."""
    own = inspect.signature(command, eval_str=True).parameters
    options = inspect.signature(_clients, eval_str=True).parameters

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        clients = _clients(**{name: given.pop(name) for name in options})
        command(**given, clients=clients)

    parameters = [parameter for name, parameter in own.items() if name != "clients"]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*parameters, *options.values())]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapped


def _clients(
    bootstrap: Annotated[
        str,
        typer.Option(envvar="WEIR_BOOTSTRAP", metavar="HOST:PORT,...", help="Kafka brokers to begin with."),
    ] = "127.0.0.1:9092",
    security_protocol: Annotated[
        str,
        typer.Option(
            envvar="WEIR_KAFKA_SECURITY_PROTOCOL",
            rich_help_panel=KAFKA,
            help="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
        ),
    ] = "PLAINTEXT",
    sasl_mechanism: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_KAFKA_SASL_MECHANISM",
            rich_help_panel=KAFKA,
            help="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. Default: PLAIN.",
        ),
    ] = None,
    sasl_username: Annotated[
        str | None,
        typer.Option(envvar="WEIR_KAFKA_SASL_USERNAME", rich_help_panel=KAFKA, help="SASL user. Default: none."),
    ] = None,
    sasl_password: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_KAFKA_SASL_PASSWORD",
            rich_help_panel=KAFKA,
            show_default=False,
            help="SASL password. Default: none. Use the variable: arguments are seen by other users.",
        ),
    ] = None,
    ssl_ca: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_KAFKA_SSL_CA",
            metavar="FILE",
            rich_help_panel=KAFKA,
            help="Certificates of trusted authorities, PEM. Default: the system's.",
        ),
    ] = None,
    ssl_certificate: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_KAFKA_SSL_CERTIFICATE",
            metavar="FILE",
            rich_help_panel=KAFKA,
            help="Own certificate, PEM. Default: none.",
        ),
    ] = None,
    ssl_key: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_KAFKA_SSL_KEY",
            metavar="FILE",
            rich_help_panel=KAFKA,
            help="Own private key, PEM. Default: none.",
        ),
    ] = None,
    ssl_key_password: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_KAFKA_SSL_KEY_PASSWORD",
            rich_help_panel=KAFKA,
            show_default=False,
            help="Password of the private key. Default: none. Use the variable.",
        ),
    ] = None,
    ssl_check_hostname: Annotated[
        bool,
        typer.Option(
            "--ssl-check-hostname/--no-ssl-check-hostname",
            envvar="WEIR_KAFKA_SSL_CHECK_HOSTNAME",
            rich_help_panel=KAFKA,
            help="Whether a broker's certificate must carry its host name.",
        ),
    ] = True,
) -> KafkaClients:
    return KafkaClients(
        bootstrap,
        security_protocol.upper(),
        sasl_mechanism.upper() if sasl_mechanism else None,
        sasl_username,
        sasl_password,
        ssl_ca,
        ssl_certificate,
        ssl_key,
        ssl_key_password,
        ssl_check_hostname,
    )
