"""What each response used."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Makes the ledger."""
    texts = ("owner", "model", "transport", "outcome", "kind")
    counts = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    op.create_table(
        "ledger",
        sa.Column("response_id", sa.Text, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in texts),
        sa.Column("reason", sa.Text),
        sa.Column("error_code", sa.Text),
        *(sa.Column(name, NUMBER, nullable=False) for name in counts),
        sa.Column("phases", sa.Text, nullable=False, comment="JSON: microseconds by phase"),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double, nullable=False),
        sa.Column(
            "day", sa.Integer, nullable=False, comment="of the end, counted from 1970-01-01 (UTC)"
        ),
        sa.Column("stored", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("response_id", name="ledger_pk"),
    )
    op.create_index("ledger_owner_ended_at", "ledger", ["owner", "ended_at"])
    op.create_index("ledger_ended_at", "ledger", ["ended_at"])
