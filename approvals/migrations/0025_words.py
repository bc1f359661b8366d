import django.db.models.deletion
from django.db import migrations, models

from portal.rows import isolate


class Migration(migrations.Migration):

    dependencies = [
        ('approvals', '0024_contents'),
        ('portal', '0007_passkeys'),
    ]

    operations = [
        migrations.AddField(
            model_name='packet',
            name='words',
            field=models.TextField(blank=True, default=''),
        ),
        migrations.CreateModel(
            name='PacketWord',
            fields=[
                ('pk', models.CompositePrimaryKey('tenant', 'word', 'packet', blank=True, editable=False, primary_key=True, serialize=False)),
                ('word', models.BinaryField()),
                ('packet', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='approvals.packet')),
                ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='portal.tenant')),
            ],
        ),
        migrations.AddIndex(
            model_name='packet',
            index=models.Index(condition=models.Q(('state', 'open')), fields=['tenant', 'kind', 'expires_at', 'id'], name='packet_kind_queue_idx'),
        ),
        migrations.AddIndex(
            model_name='packet',
            index=models.Index(condition=models.Q(('settled_at__isnull', False)), fields=['tenant', 'kind', '-number'], name='packet_kind_settled_idx'),
        ),
        isolate("approvals_packetword"),
    ]
