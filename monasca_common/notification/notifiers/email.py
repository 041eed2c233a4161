# SPDX-License-Identifier: Apache-2.0
"""E-mail: plain text and HTML over SMTP, with STARTTLS."""

from __future__ import annotations

import contextlib
import email.policy
import email.utils
import smtplib
import socket
import ssl
from email.message import EmailMessage
from typing import Any

from monasca_common.alarms.notification_methods import EMAIL_ADDRESS
from monasca_common.notification.addresses import connect, resolve
from monasca_common.notification.errors import AddressRefused, SendFailed
from monasca_common.notification.notification import Notification
from monasca_common.notification.notifiers.base import OwnNotifier
from monasca_common.notification.settings import EmailSettings, email_settings
from monasca_common.notification.texts import Texts
from monasca_common.runtime.send_deadline import SendDeadline


class EmailNotifier(OwnNotifier[EmailSettings]):
    read = staticmethod(email_settings)

    def send(self, notification: Notification, address: str) -> str:
        message = message_of(notification, self._tools.texts, sender=self._settings.from_addr, receiver=address)
        # this address is only logged, because it belongs to the operator's network
        own = f"{self._settings.server}:{self._settings.port}"
        with SendDeadline(self._settings.timeout) as deadline:
            try:
                self._deliver(message, deadline)
            except smtplib.SMTPResponseException as error:
                raise SendFailed(f"the mail server returned {error.smtp_code}", detail=own) from error
            except smtplib.SMTPRecipientsRefused as error:
                codes = {code for code, _ in error.recipients.values()}
                reason = f"the mail server refused the receiver: {', '.join(map(str, codes))}"
                raise SendFailed(reason, detail=own) from error
            except (smtplib.SMTPException, OSError, SendFailed) as error:
                fault = f"gave no response within {self._settings.timeout} s" if deadline.over else "did not accept it"
                raise SendFailed(f"the mail server {fault}", detail=f"{own}: {error}") from error
        return "the mail server accepted it"

    def _deliver(self, message: EmailMessage, deadline: SendDeadline) -> None:
        settings = self._settings
        smtp = WatchedSmtp(deadline, settings.server, settings.port, deadline.left(settings.timeout))
        with contextlib.closing(smtp):
            if settings.starttls:
                smtp.starttls(context=ssl.create_default_context(cafile=settings.ca_file))
            if settings.user:
                smtp.login(settings.user, settings.password or "")
            smtp.send_message(message)
            # The server has accepted the e-mail, which must not be sent again if QUIT fails.
            with contextlib.suppress(smtplib.SMTPException, OSError):
                smtp.quit()


class WatchedSmtp(smtplib.SMTP):
    """An SMTP connection that is shut down at its deadline."""

    def __init__(self, deadline: SendDeadline, host: str, port: int, timeout: float) -> None:
        self._deadline = deadline  # this is set first, because the base class connects
        super().__init__(host, port, timeout=timeout)

    def _get_socket(self, host: str, port: int, timeout: float) -> Any:
        addresses = resolve(host, port, None, self._deadline.left(timeout), socket.getaddrinfo)
        connection = connect(addresses, port, self._deadline)
        connection.settimeout(timeout)
        return connection


def message_of(notification: Notification, texts: Texts, *, sender: str, receiver: str) -> EmailMessage:
    """Return an e-mail whose Message-ID is the notification's id. Raises `AddressRefused` if ``receiver`` is not a
    single e-mail address."""
    if EMAIL_ADDRESS.fullmatch(receiver) is None:
        raise AddressRefused("the address is not a single e-mail address: write someone@example.org")
    message = EmailMessage(policy=email.policy.SMTP.clone(cte_type="7bit"))  # some servers accept no other bytes
    message["From"] = sender
    message["To"] = receiver
    # In a header, =? begins an encoded word, which would be decoded, even to control characters.
    message["Subject"] = texts.subject(notification).replace("=?", "= ?")
    message["Date"] = email.utils.formatdate(notification.change.time_ms / 1000)
    message["Message-ID"] = f"<{notification.id}@{sender.rpartition('@')[2] or 'localhost'}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(texts.text(notification))
    message.add_alternative(texts.html(notification), subtype="html")
    return message
