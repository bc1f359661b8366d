from django.db import migrations, transaction

from approvals.indexing import listed_under, searchable

# So many packets at a time, each portion in a transaction of its own: nobody waits long for a row,
# and what is interrupted goes on where it was.
PORTION = 500


def fill(apps, editor):
    """Packets that were opened before get their words from the page they were sealed with."""
    packets = apps.get_model("approvals", "Packet").objects.order_by("pk")
    listed = apps.get_model("approvals", "PacketWord").objects
    last = 0
    while True:
        with transaction.atomic(using=editor.connection.alias):
            rows = list(packets.filter(pk__gt=last).only("tenant_id", "page", "digest")[:PORTION])
            if not rows:
                return
            for row in rows:
                row.words = searchable(row.page)
            packets.bulk_update(rows, ["words"])
            listed.bulk_create(
                (
                    listed.model(tenant_id=row.tenant_id, word=word, packet_id=row.pk)
                    for row in rows
                    for word in listed_under(row.words, row.digest)
                ),
                ignore_conflicts=True,
            )
        last = rows[-1].pk


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("approvals", "0025_words")]
    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
