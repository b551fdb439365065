"""What lasts of responses that still run."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Makes running, events, claims, cancels, processes; responses learn of their last event."""
    op.add_column(
        "responses",
        sa.Column(
            "terminal", sa.Integer, comment="number of its terminal event, where it was begun"
        ),
    )
    _running()
    _events()
    _claims()
    op.create_table(
        "cancels",
        sa.Column("id", NUMBER, autoincrement=True, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("response", sa.Text, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="cancels_pk"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "processes",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("seen_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="processes_pk"),
    )


def _running() -> None:
    op.create_table(
        "running",
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("process", sa.Text, nullable=False),
        sa.Column("previous", sa.Text, comment="the response that it continues"),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("transport", sa.Text, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("owner", "id", name="running_pk"),
    )
    op.create_index("running_process", "running", ["process"])
    op.create_index("running_previous", "running", ["owner", "previous"])


def _events() -> None:
    usage = "JSON: what the response had used then"
    op.create_table(
        "events",
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("response", sa.Text, nullable=False),
        sa.Column("first", sa.Integer, nullable=False, comment="number of its first event"),
        sa.Column("next", sa.Integer, nullable=False, comment="number of its last event, plus 1"),
        sa.Column("usage", sa.LargeBinary, nullable=False, comment=usage),
        sa.Column("blob", sa.LargeBinary, nullable=False, comment="MessagePack: each event's JSON"),
        sa.PrimaryKeyConstraint("owner", "response", "first", name="events_pk"),
    )


def _claims() -> None:
    key = "digest of owner and idempotency key"
    process = "what must live for it to hold; none once it is stored"
    op.create_table(
        "claims",
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("key", sa.LargeBinary, nullable=False, comment=key),
        sa.Column("body", sa.LargeBinary, nullable=False, comment="digest of what was asked for"),
        sa.Column("response", sa.Text, nullable=False),
        sa.Column(
            "stored", sa.Boolean, nullable=False, comment="whether the response is to be stored"
        ),
        sa.Column("process", sa.Text, comment=process),
        sa.Column("until", sa.Double),
        sa.PrimaryKeyConstraint("owner", "key", name="claims_pk"),
    )
    op.create_index("claims_response", "claims", ["owner", "response"])
    for column in ("process", "until"):
        there = sa.text(f"{column} IS NOT NULL")
        op.create_index(
            f"claims_{column}", "claims", [column], sqlite_where=there, postgresql_where=there
        )
