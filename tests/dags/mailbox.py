"""A mail server that keeps what it is given."""

import json
import queue
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage

#: The first of them cannot be found, which keeps the second from nothing.
_NOTIFIERS = [
    {"classpath": "nowhere.Notifier"},
    {
        "classpath": "airflow.providers.smtp.notifications.smtp.SmtpNotifier",
        "kwargs": {
            "from_email": "airflow@example.org",
            "to": "data@example.org",
            "subject": "{{ alert.subject }}",
            "html_content": "{{ alert.html }}",
        },
    },
]


class _Conversation(socketserver.StreamRequestHandler):
    """As much of SMTP as it takes to hand over a mail."""

    def handle(self) -> None:
        self._say("220 ready")
        while line := self.rfile.readline():
            match line.split()[0].upper():
                case b"DATA":
                    self._say("354 go on")
                    self.server.mails.put(self._mail())  # type: ignore[attr-defined]
                    self._say("250 kept")
                case b"QUIT":
                    self._say("221 bye")
                    return
                case _:
                    self._say("250 fine")

    def _mail(self) -> EmailMessage:
        lines = []
        while (line := self.rfile.readline()) != b".\r\n":
            lines.append(line.removeprefix(b"."))
        return message_from_bytes(b"".join(lines), policy=policy.default)

    def _say(self, words: str) -> None:
        self.wfile.write(f"{words}\r\n".encode())


class Mailbox(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Conversation)
        self.mails: queue.Queue[EmailMessage] = queue.Queue()

    @property
    def settings(self) -> dict[str, str]:
        """What has Airflow send mails here."""
        extra = {"disable_ssl": True, "disable_tls": True}
        smtp = {"conn_type": "smtp", "host": "127.0.0.1", "port": self.port, "extra": extra}
        return {"AIRFLOW_CONN_SMTP_DEFAULT": json.dumps(smtp), "ONCELOAD_ALERTS": json.dumps(_NOTIFIERS)}

    @property
    def port(self) -> int:
        return int(self.server_address[1])


@contextmanager
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as box:
        thread = threading.Thread(target=box.serve_forever)
        thread.start()
        try:
            yield box
        finally:
            box.shutdown()
            thread.join()


def text_of(mail: EmailMessage) -> str:
    """What it says, where it is one page."""
    (part,) = (each for each in mail.walk() if each.get_content_type() == "text/html")
    return str(part.get_content())
