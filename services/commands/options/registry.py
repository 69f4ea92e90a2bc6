"""The options by which commands reach a schema registry: written once, added to any command.

    @with_registry
    def command(query: ..., access: RegistryAccess) -> None: ...

has the options of this module in place of `access`. No option takes a secret itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from schemas.errors import UsageError
from schemas.language.options import REGISTRY_URL
from services.commands.options.groups import with_options
from services.commands.options.kafka import secret
from services.formats.registry_access import RegistryAccess

REGISTRY = "Schema registry"


def shown(url: str) -> str:
    """A URL without what may be a password."""
    return repr(url.rpartition("@")[2])



def _access(
    registry: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_REGISTRY",
            metavar="URL",
            rich_help_panel=REGISTRY,
            help="Registry of the schemas that Avro records name, for streams that name none. Default: none.",
        ),
    ] = None,
    registry_username: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_REGISTRY_USERNAME", rich_help_panel=REGISTRY, help="User of the registry. Default: none."
        ),
    ] = None,
    registry_password_file: Annotated[
        Path | None,
        typer.Option(
            envvar="WEIR_REGISTRY_PASSWORD_FILE",
            metavar="FILE",
            rich_help_panel=REGISTRY,
            help="File with the user's password. Default: what the variable WEIR_REGISTRY_PASSWORD holds.",
        ),
    ] = None,
    registry_token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="WEIR_REGISTRY_TOKEN_FILE",
            metavar="FILE",
            rich_help_panel=REGISTRY,
            help="File with a bearer token. Default: what the variable WEIR_REGISTRY_TOKEN holds.",
        ),
    ] = None,
    registry_ca: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_REGISTRY_CA",
            metavar="FILE",
            rich_help_panel=REGISTRY,
            help="Certificates of trusted authorities, PEM. Default: the system's.",
        ),
    ] = None,
    registry_certificate: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_REGISTRY_CERTIFICATE",
            metavar="FILE",
            rich_help_panel=REGISTRY,
            help="Own certificate, PEM. Default: none.",
        ),
    ] = None,
    registry_key: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_REGISTRY_KEY",
            metavar="FILE",
            rich_help_panel=REGISTRY,
            help="Own private key, PEM. Default: in the file of the certificate.",
        ),
    ] = None,
) -> RegistryAccess:
    password = secret("--registry-password-file", registry_password_file, "WEIR_REGISTRY_PASSWORD")
    token = secret("--registry-token-file", registry_token_file, "WEIR_REGISTRY_TOKEN")
    if registry is not None and not REGISTRY_URL.fullmatch(registry):
        example = "http://127.0.0.1:8081"
        raise UsageError(f"--registry is a URL such as {example}, without a password; got {shown(registry)}")
    if registry_username is not None and token is not None:
        raise UsageError("a registry takes a user's password or a bearer token, not both")
    if password is not None and registry_username is None:
        raise UsageError("the password of a registry needs its user: --registry-username")
    if registry_key and not registry_certificate:
        raise UsageError(f"the private key {registry_key} needs its certificate")
    if registry is None and (registry_username or token or registry_certificate):
        raise UsageError("a registry's user, token and certificate need its address: --registry URL")
    for option, file in (("ca", registry_ca), ("certificate", registry_certificate), ("key", registry_key)):
        if file is not None and not os.access(file, os.R_OK):
            raise UsageError(f"--registry-{option} {file} cannot be read")
    return RegistryAccess(registry, registry_username, password, token, registry_ca, registry_certificate, registry_key)


with_registry = with_options("access", _access)
"""Gives a command the options of a registry, and the `RegistryAccess` made from them as `access`."""
