"""The options by which commands reach Kafka: written once, added to any command.

    @with_kafka
    def command(query: ..., clients: KafkaClients) -> None: ...

has the options of this module in place of `clients`. No option takes a secret itself (`secret`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from schemas.errors import UsageError
from services.commands.options.groups import with_options
from services.process.security import KafkaClients

KAFKA = "Kafka security"


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
            help="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER (OAuth client credentials). Default: PLAIN.",
        ),
    ] = None,
    sasl_username: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_KAFKA_SASL_USERNAME",
            rich_help_panel=KAFKA,
            help="SASL user; with OAUTHBEARER the OAuth client's id. Default: none.",
        ),
    ] = None,
    sasl_password_file: Annotated[
        Path | None,
        typer.Option(
            envvar="WEIR_KAFKA_SASL_PASSWORD_FILE",
            metavar="FILE",
            rich_help_panel=KAFKA,
            help="File with the SASL password, or the OAuth client's secret; a line break at its end does not count. "
            "Default: what the variable WEIR_KAFKA_SASL_PASSWORD holds.",
        ),
    ] = None,
    oauth_token_url: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_KAFKA_OAUTH_TOKEN_URL",
            metavar="URL",
            rich_help_panel=KAFKA,
            help="With OAUTHBEARER: the OAuth token endpoint. Default: none.",
        ),
    ] = None,
    oauth_scope: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_KAFKA_OAUTH_SCOPE",
            rich_help_panel=KAFKA,
            help="With OAUTHBEARER: the scope to ask for. Default: none.",
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
            help="Own private key, PEM, encrypted or not. Default: in the file of the certificate.",
        ),
    ] = None,
    ssl_key_password_file: Annotated[
        Path | None,
        typer.Option(
            envvar="WEIR_KAFKA_SSL_KEY_PASSWORD_FILE",
            metavar="FILE",
            rich_help_panel=KAFKA,
            help="File with the private key's password. Default: what the variable WEIR_KAFKA_SSL_KEY_PASSWORD holds.",
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
        secret("--sasl-password-file", sasl_password_file, "WEIR_KAFKA_SASL_PASSWORD"),
        ssl_ca,
        ssl_certificate,
        ssl_key,
        secret("--ssl-key-password-file", ssl_key_password_file, "WEIR_KAFKA_SSL_KEY_PASSWORD"),
        ssl_check_hostname,
        oauth_token_url,
        oauth_scope,
    )


with_kafka = with_options("clients", _clients)
"""Gives a command the Kafka options, and the `KafkaClients` made from them as `clients`."""


def secret(option: str, file: Path | None, variable: str) -> str | None:
    """A secret from a file or a variable: every user of the machine can read a process's arguments."""
    given = os.environ.get(variable) or None
    if file is None:
        return given
    if given is not None:
        raise UsageError(f"{option} and {variable} are both given: give one")
    try:
        return file.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise UsageError(f"{option} {file} cannot be read: {why}") from None
