"""Chains of items, and the responses at their ends."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Makes nodes, items, responses, leases."""
    op.create_table(
        "nodes",
        sa.Column("id", NUMBER, autoincrement=True, nullable=False),
        sa.Column("parent", NUMBER),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("turn", sa.Integer, nullable=False),
        sa.Column("size", NUMBER, nullable=False, comment="bytes of its items and its response"),
        sa.Column("used_at", sa.Double),
        sa.Column("draft", sa.Double),
        sa.PrimaryKeyConstraint("id", name="nodes_pk"),
        sa.ForeignKeyConstraint(["parent"], ["nodes.id"], name="nodes_parent_fk"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "items",
        sa.Column("node", NUMBER, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("lookup", sa.LargeBinary, comment="digest of owner and item id"),
        sa.Column("raw", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("node", "position", name="items_pk"),
        sa.ForeignKeyConstraint(["node"], ["nodes.id"], name="items_node_fk", ondelete="CASCADE"),
    )
    op.create_table(
        "responses",
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("node", NUMBER, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("owner", "id", name="responses_pk"),
        sa.ForeignKeyConstraint(["node"], ["nodes.id"], name="responses_node_fk"),
        sa.UniqueConstraint("node", name="responses_node_key"),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.Text, nullable=False, comment="what only one process does at a time"),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("name", name="leases_pk"),
    )
    for table, column in (
        ("nodes", "parent"),
        ("nodes", "used_at"),
        ("nodes", "draft"),
        ("items", "lookup"),
    ):
        there = sa.text(f"{column} IS NOT NULL")
        op.create_index(
            f"{table}_{column}", table, [column], sqlite_where=there, postgresql_where=there
        )
