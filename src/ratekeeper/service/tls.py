"""TLS for every listener: certificates from files, which are read again on SIGHUP.

One certificate serves HTTP, gRPC and Redis clients.  With ``--tls-client-ca`` clients must show a certificate that one
of these authorities signed (mutual TLS).  Law: a mistake in a file is an error at start-up; later it leaves the present
certificates in force.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, NoReturn

from ratekeeper.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

    from ratekeeper.service.options import Options


class Certificates:
    """The contents of the files, checked: contexts for streams and for HTTP/2, and the same bytes for grpcio."""

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self.chain = read(cert, "--tls-cert")
        self.key = read(key, "--tls-key")
        self.client_ca = None if client_ca is None else read(client_ca, "--tls-client-ca")
        self.context = self._context(cert, key, client_ca)
        self._http2_context = self._context(cert, key, client_ca)
        self._http2_context.set_alpn_protocols(["h2"])

    def context_for(self, listener: str) -> ssl.SSLContext:
        """The context of a listener: gRPC clients insist on HTTP/2."""
        return self._http2_context if listener == "grpc" else self.context

    @staticmethod
    def _context(cert: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        try:
            context.load_cert_chain(cert, key, password=refuse_passphrase)
        except InvalidInput:
            raise
        except (ssl.SSLError, ValueError) as error:
            if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
                raise InvalidInput(
                    f"--tls-key: expected the private key of the certificate in {str(cert)!r}, got another key."
                ) from None
            raise InvalidInput(
                f"--tls-cert, --tls-key: expected a certificate chain and its private key in PEM, got {str(cert)!r} "
                f"and {str(key)!r} ({getattr(error, 'reason', None) or error})."
            ) from None
        if client_ca is not None:
            try:
                context.load_verify_locations(client_ca)
            except ssl.SSLError as error:
                raise InvalidInput(
                    f"--tls-client-ca: expected certificates of authorities in PEM, got {str(client_ca)!r} "
                    f"({error.reason})."
                ) from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def certificates_of(options: Options) -> Certificates | None:
    """Read the certificates that the options name; None for a service without TLS."""
    if options.tls_cert is None or options.tls_key is None:
        return None
    return Certificates(options.tls_cert, options.tls_key, options.tls_client_ca)


def read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"{option}: expected a file that can be read, got {str(path)!r} ({error.strerror or error})."
        ) from error


def refuse_passphrase() -> NoReturn:
    """Raise, in place of OpenSSL's question at the terminal."""
    raise InvalidInput("--tls-key: expected a key without a passphrase, because a service cannot be asked for it.")
