"""Whether clients can accept the certificate of TLS today.

Python has no public reader of certificates. So this server shakes hands with itself, in memory, and
the client's end tells what it finds wrong.
"""

import contextlib
import ssl

_NOT_YET_VALID, _EXPIRED = 9, 10
"""OpenSSL's `X509_V_ERR_CERT_NOT_YET_VALID` and `X509_V_ERR_CERT_HAS_EXPIRED`."""
_TURNS = 2
"""Messages of each end until the client has seen the certificate."""


def fault_of_dates(cert_file: str, key_file: str) -> str:
    """Return what is wrong with the dates of a certificate, in OpenSSL's words; empty if nothing.

    Nothing else is judged: who has signed it is the clients' business.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert_file, key_file)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself is trusted
    client.load_verify_locations(cert_file)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    try:
        for end in ends * _TURNS:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message if error.verify_code in (_NOT_YET_VALID, _EXPIRED) else ""
    except ssl.SSLError:
        return ""
    return ""
