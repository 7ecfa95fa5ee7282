"""`portable-spdnn backends`: what is registered, and what of it can run here."""

from __future__ import annotations

from portable_spdnn.cli import options as flag


def backends(json: flag.Json = None) -> None:
    """List every registered backend: available or why not, device, versions, operations."""
    from portable_spdnn import registry
    from portable_spdnn.report import run_report

    survey = registry.backends()
    rows = [
        (
            info.name,
            "yes" if info.availability.available else "no",
            info.execution_space or "-",
            info.availability.device or info.availability.reason,
            ", ".join(f"{name} {number}" for name, number in info.availability.versions.items()),
            ", ".join(info.operations),
        )
        for info in survey
    ]
    columns = ("backend", "available", "space", "device, or why not", "versions", "operations")
    run_report.print_table(columns, rows, to_stderr=json == "-")
    if json is not None:
        records = [
            {
                "backend": info.name,
                "available": info.availability.available,
                "reason": info.availability.reason or None,
                "device": info.availability.device or None,
                "execution_space": info.execution_space or None,
                "memory_space": info.memory_space or None,
                "versions": info.availability.versions,
                "operations": list(info.operations),
            }
            for info in survey
        ]
        run_report.write_json(records, json)
