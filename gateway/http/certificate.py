"""Whether clients can accept the certificate of TLS today.

Python has no public reader of certificates. So this server shakes hands with itself, in memory, and
the client's end tells what it finds wrong.
"""

import contextlib
import ssl

_NOT_YET_VALID, _EXPIRED = 9, 10
"""OpenSSL's `X509_V_ERR_CERT_NOT_YET_VALID` and `X509_V_ERR_CERT_HAS_EXPIRED`."""
_NO_CHECK_TIME = 0x200000
"""OpenSSL's `X509_V_FLAG_NO_CHECK_TIME`."""
_TURNS = 2
"""Messages of each end until the client has seen the certificate."""


def fault_of_dates(cert_file: str, key_file: str) -> str:
    """Return what is wrong with the dates of a certificate, in OpenSSL's words; empty if nothing.

    Nothing else is judged: who has signed it is the clients' business.
    """
    try:
        _shake_hands(cert_file, key_file)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message if error.verify_code in (_NOT_YET_VALID, _EXPIRED) else ""
    except ssl.SSLError:
        return ""
    return ""


def expires_at(cert_file: str, key_file: str) -> float | None:
    """Return when a certificate expires, in seconds since 1970; None if nobody can tell."""
    try:
        seen = _shake_hands(cert_file, key_file, _NO_CHECK_TIME).getpeercert()
    except ssl.SSLError:
        return None
    return ssl.cert_time_to_seconds(str(seen["notAfter"])) if seen else None


def _shake_hands(cert_file: str, key_file: str, flags: int = 0) -> ssl.SSLObject:
    """Return the client's end; raises `ssl.SSLError`."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert_file, key_file)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    # The certificate itself is trusted.
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(flags)
    client.load_verify_locations(cert_file)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for end in ends * _TURNS:
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return ends[0]
