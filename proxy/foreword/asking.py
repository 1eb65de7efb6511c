"""What went wrong with a question over HTTP, in words for people."""

import http.client
from urllib.error import URLError


def why(error: Exception) -> str:
    """One line. What came instead of HTTP is never shown: it may be anything."""
    match error:
        case URLError(reason=Exception() as reason):
            return why(reason)
        case URLError(reason=reason):
            return str(reason)
        case http.client.RemoteDisconnected():
            return "the connection was closed without an answer"
        case http.client.IncompleteRead(partial=partial):
            return f"the answer broke off after {len(partial):,} bytes"
        case http.client.BadStatusLine() | http.client.LineTooLong():
            return "what answers there does not speak HTTP"
    return str(error) or type(error).__name__
