import ssl
from pathlib import Path

from rollmill.errors import ConfigError


def client_tls(ca_file: Path | None) -> ssl.SSLContext:
    """Return how a client checks the certificates of services.

    Args:
        ca_file: the authorities to trust, PEM; None for the system's own.

    Raises:
        ConfigError: the file cannot be used.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise ConfigError(f"{ca_file} holds no certificates (PEM): {error.reason}") from None
    except OSError as error:
        raise ConfigError(f"certificates of authorities: {ca_file}: {error.strerror}") from None


def check_server_files(cert_file: Path, key_file: Path) -> None:
    """Refuse a certificate and key that no service can serve with, before anything listens.

    Raises:
        ConfigError: they cannot be read, or do not belong together.
    """
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert_file, key_file)
    except ssl.SSLError as error:
        raise ConfigError(f"{cert_file} and {key_file} are no certificate with its key: {error.reason}") from None
    except OSError as error:
        raise ConfigError(f"tls_cert_file {cert_file}, tls_key_file {key_file}: {error.strerror}") from None
