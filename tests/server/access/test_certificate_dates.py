"""From when to when certificates are valid, and who hears of it."""

from __future__ import annotations

import asyncio
import base64
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from certificates import authority, certificate, openssl
from hypothesis import given
from hypothesis import strategies as st

from veltair.access_config import TlsConfig
from veltair.cli import main
from veltair.server.access.certificate_dates import DAY_S, ValidTime, authorities_time, chain_time, read_times
from veltair.server.access.certificates import Certificates, valid_times
from veltair.server.ipc.daemon_events import EventKind
from veltair.server.repository.folder_reads import FolderReads


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    authority(made, "ours")
    certificate(made, "server", "ours", "DNS:localhost")
    for name, begins, ends in (
        ("past", "19991231235959Z", "20200102030405Z"),
        ("far", "20200101000000Z", "20991231235959Z"),
        ("next", "20900101000000Z", "20910101000000Z"),
    ):
        (made / "index").write_text("")
        (made / "ca.cnf").write_text(
            "[ca]\ndefault_ca=d\n[d]\ndatabase=index\nnew_certs_dir=.\nserial=serial\ndefault_md=sha256\n"
            "policy=p\n[p]\ncommonName=supplied\n"
        )
        openssl(made, "req", "-new", "-key", "server.key", "-subj", f"/CN={name}", "-out", "r")
        signed = ["ca", "-batch", "-config", "ca.cnf", "-cert", "ours.pem", "-keyfile", "ours.key", "-create_serial"]
        openssl(made, *signed, "-startdate", begins, "-enddate", ends, "-in", "r", "-out", f"{name}.pem")
    return made


def tls(folder: Path, name: str, **more: str) -> TlsConfig:
    return TlsConfig(certificate=str(folder / f"{name}.pem"), key=str(folder / "server.key"), **more)


@pytest.mark.parametrize("name", ["ours", "server", "past", "far", "next"])
def test_dates_are_those_that_openssl_reads(folder: Path, name: str) -> None:
    command = ["openssl", "x509", "-noout", "-dates", "-in", str(folder / f"{name}.pem")]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    dates = [ssl.cert_time_to_seconds(line.partition("=")[2]) for line in said.splitlines()]
    assert read_times((folder / f"{name}.pem").read_bytes()) == [ValidTime(*map(float, dates))]


def test_a_chain_ends_with_its_first_and_authorities_with_their_last(folder: Path) -> None:
    both = b"".join((folder / f"{name}.pem").read_bytes() for name in ("past", "far"))
    past, far = read_times(both)
    assert chain_time(both) == ValidTime(far.begins_s, past.ends_s)
    assert authorities_time(both) == ValidTime(past.begins_s, far.ends_s)
    assert chain_time(b"") is authorities_time(b"no certificate") is None


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_bytes_that_are_no_certificate_have_no_dates(noise: bytes, at: int, value: int) -> None:
    text = b"-----BEGIN CERTIFICATE-----" + base64.b64encode(noise) + b"-----END CERTIFICATE-----"
    assert len(read_times(text)) <= 1
    der = bytearray(ssl.PEM_cert_to_DER_cert(EXAMPLE))
    der[at % len(der)] = value
    read_times(ssl.DER_cert_to_PEM_cert(bytes(der)).encode())


NEW = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
EXAMPLE = subprocess.run(
    [*NEW, "-subj", "/CN=a", "-keyout", "/dev/null"], check=True, capture_output=True, text=True
).stdout


def test_what_is_said_depends_on_how_long_it_is_valid() -> None:
    months, hours = ValidTime(0, 90 * DAY_S), ValidTime(0, DAY_S)
    assert months.fault(75 * DAY_S) == "" and "expires at 1970-04-01" in months.fault(77 * DAY_S)
    assert hours.fault(0.7 * DAY_S) == "" and "expires" in hours.fault(0.8 * DAY_S)
    assert "expired at" in months.fault(90.1 * DAY_S) and "not valid before" in months.fault(-1)
    assert months.is_in_force(DAY_S) and not months.is_in_force(-1) and not months.is_in_force(91 * DAY_S)
    assert months.days_left(91 * DAY_S) == -1


class Threads:
    def use_tls(self, tls: TlsConfig, names: Any) -> bool:
        return True


def test_an_operator_hears_once_a_day_and_again_when_it_changes(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[EventKind, str]] = []
    (end_s,) = (time.ends_s for time in read_times((folder / "past.pem").read_bytes()))
    now_s = end_s - 20 * DAY_S
    days = Certificates(Threads(), tls(folder, "past"), lambda *event: told.append((event[0], event[2])), lambda: now_s)
    assert asyncio.run(days.load([], FolderReads())) and not told and round(days.days_left()["certificate"]) == 20
    for day, kinds in (
        (-13.0, [EventKind.CERTIFICATE_EXPIRES]),
        (-13.0, []),
        (-12.0, [EventKind.CERTIFICATE_EXPIRES]),
        (0.01, [EventKind.CERTIFICATE_INVALID]),
        (0.02, []),
        (1.02, [EventKind.CERTIFICATE_INVALID]),
    ):
        told.clear()
        now_s = end_s + day * DAY_S
        days._tell()
        assert [kind for kind, _ in told] == kinds, day
        assert all("past.pem: it expire" in text for _, text in told)
    assert "past.pem: it expired at 2020-01-02 03:04 UTC" in caplog.text


def test_both_files_are_looked_at(folder: Path) -> None:
    found = valid_times(tls(folder, "far", client_authorities=str(folder / "ours.pem")))
    assert set(found) == {"certificate", "client_authorities"}


CONFIG = '[server]\n[server.tls]\ncertificate = "{0}"\nkey = "server.key"\n[[tenants]]\nname = "a"\nartifact = "{1}"\n'


def test_the_doctor_and_a_check_say_it(folder: Path, artifacts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "serve.toml"
    for name, words in (("past", "it expired at 2020"), ("next", "not valid before 2090"), ("far", "")):
        path.write_text(CONFIG.format(f"{name}.pem", artifacts / "mlp"))
        assert main(["serve", "--check", str(path)]) == 0
        said = capsys.readouterr().err
        assert words in said and bool(said) == bool(words)
        assert main(["doctor", str(path)]) == 0
        assert (words or "days left") in " ".join(capsys.readouterr().out.split())
    path.write_text(CONFIG.format("none.pem", artifacts / "mlp"))
    for command in (["serve", "--check"], ["doctor"]):
        assert main([*command, str(path)]) == 2
        assert "none.pem: No such file" in capsys.readouterr().err
