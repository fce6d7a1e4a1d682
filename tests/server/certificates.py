"""Certificates for tests, made by the `openssl` command."""

from __future__ import annotations

import subprocess
from pathlib import Path


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def authority(folder: Path, name: str) -> None:
    """NAME.pem and NAME.key: an authority."""
    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]
    openssl(folder, *new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")


def certificate(folder: Path, name: str, authority: str, alternative: str = "", *, key: str = "ec") -> None:
    """NAME.pem and NAME.key: a certificate by this authority."""
    kind = ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"] if key == "ec" else ["rsa:2048"]
    openssl(folder, "req", "-newkey", *kind, "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", "r")
    (folder / "extensions").write_text(f"subjectAltName={alternative}" if alternative else "")
    signed = ["x509", "-req", "-in", "r", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial"]
    openssl(folder, *signed, "-days", "30", "-extfile", "extensions", "-out", f"{name}.pem")
