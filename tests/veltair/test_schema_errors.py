"""What is said of a file that does not fit its schema."""

import msgspec
import pytest

from veltair.schema_errors import with_key_first


class Tenant(msgspec.Struct, forbid_unknown_fields=True):
    name: str = ""
    target_ms: float = 1.0


class Load(msgspec.Struct, forbid_unknown_fields=True):
    target: str = ""
    seconds: float = 1.0


class File(msgspec.Struct, forbid_unknown_fields=True):
    load: Load | None = None
    tenants: tuple[Tenant, ...] = ()


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            {"tenants": [{"target": "x"}]},
            "tenants[0]: object contains unknown field `target`; did you mean `target_ms`?",
        ),
        ({"load": {"targett": "x"}}, "load: object contains unknown field `targett`; did you mean `target`?"),
        ({"load": {"tenant": []}}, "load: object contains unknown field `tenant`; did you mean `tenants`?"),
        ({"load": {"zzz": 1}}, "load: object contains unknown field `zzz`"),
        ({"tenant": []}, "object contains unknown field `tenant`; did you mean `tenants`?"),
    ],
)
def test_an_unknown_key_gets_the_nearest_of_its_table_first(raw: object, expected: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(raw, File)
    assert with_key_first(str(caught.value), File, raw) == expected
