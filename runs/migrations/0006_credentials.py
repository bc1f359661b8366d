
import django.db.models.deletion
import runs.models
import uuid
from django.conf import settings
from django.db import migrations, models

from portal.rows import isolate


class Migration(migrations.Migration):

    dependencies = [
        ('portal', '0003_audit_head'),
        ('runs', '0005_receipts'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='credential',
            name='config',
            field=models.JSONField(default=dict),
        ),
        migrations.AddField(
            model_name='credential',
            name='consumers',
            field=models.JSONField(default=runs.models.every_contract),
        ),
        migrations.AddField(
            model_name='credential',
            name='expires_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='credential',
            name='kind',
            field=models.CharField(choices=[('static', 'a secret kept here'), ('github_app', 'GitHub App'), ('oauth', 'OAuth client'), ('vault_kv', 'Vault or OpenBao, stored secret'), ('vault_dynamic', 'Vault or OpenBao, made for each use')], default='static', max_length=14),
        ),
        migrations.AddField(
            model_name='credential',
            name='minutes',
            field=models.PositiveIntegerField(default=15),
        ),
        migrations.AddField(
            model_name='credential',
            name='owner',
            field=models.CharField(blank=True, max_length=200),
        ),
        migrations.AddField(
            model_name='credential',
            name='retired_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='credential',
            name='retired_by',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.CreateModel(
            name='CredentialChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ('name', models.CharField(max_length=120)),
                ('number', models.PositiveIntegerField()),
                ('before', models.JSONField(default=dict)),
                ('after', models.JSONField()),
                ('sealed', models.BinaryField(blank=True, null=True)),
                ('wider', models.JSONField(default=list)),
                ('reason', models.TextField()),
                ('digest', models.CharField(max_length=64)),
                ('state', models.CharField(choices=[('proposed', 'proposed'), ('in_force', 'in force'), ('denied', 'denied'), ('withdrawn', 'withdrawn')], default='proposed', max_length=10)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('decided_at', models.DateTimeField(blank=True, null=True)),
                ('comment', models.TextField(blank=True)),
                ('self_approved', models.BooleanField(default=False)),
                ('author', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('decided_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='portal.tenant')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('tenant', 'name', 'number'), name='credential_change_number_once'), models.UniqueConstraint(condition=models.Q(('state', 'proposed')), fields=('tenant', 'name'), name='one_open_change_per_credential')],
            },
        ),
        migrations.CreateModel(
            name='CredentialGrant',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ('origin', models.CharField(choices=[('packet', 'a person'), ('policy', 'the policy'), ('contract', 'the contract')], max_length=8)),
                ('consumer', models.CharField(max_length=140)),
                ('scope', models.JSONField()),
                ('minted_scope', models.JSONField(blank=True, null=True)),
                ('state', models.CharField(max_length=10)),
                ('why', models.TextField(blank=True)),
                ('max_uses', models.PositiveIntegerField(blank=True, null=True)),
                ('uses', models.PositiveIntegerField(default=0)),
                ('lease', models.UUIDField(blank=True, null=True)),
                ('sealed', models.BinaryField(blank=True, null=True)),
                ('takes_back', models.BooleanField(default=False)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('approved_at', models.DateTimeField(blank=True, null=True)),
                ('minted_at', models.DateTimeField(blank=True, null=True)),
                ('used_at', models.DateTimeField(blank=True, null=True)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('source_ends_at', models.DateTimeField(blank=True, null=True)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('revoke_attempts', models.PositiveIntegerField(default=0)),
                ('revoke_at', models.DateTimeField(blank=True, null=True)),
                ('revoke_error', models.TextField(blank=True)),
                ('call', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='credential_grants', to='runs.toolcall')),
                ('credential', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='grants', to='runs.credential')),
                ('ended_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='credential_grants', to='runs.run')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='portal.tenant')),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('state__in', ['minting', 'live'])), fields=['expires_at'], name='credential_alive_idx'), models.Index(condition=models.Q(('state', 'revoking')), fields=['revoke_at'], name='credential_revoke_idx'), models.Index(condition=models.Q(('sealed__isnull', False)), fields=['tenant'], name='credential_sealed_idx')],
                'constraints': [models.CheckConstraint(condition=models.Q(('state__in', ['requested', 'approved', 'minting', 'live', 'revoking', 'revoked', 'ended', 'expired', 'refused', 'lost', 'denied', 'unanswered', 'withdrawn'])), name='credential_state_known'), models.CheckConstraint(condition=models.Q(models.Q(('state__in', ['minting', 'live']), _negated=True), ('expires_at__isnull', False), _connector='OR'), name='credential_live_has_an_end'), models.CheckConstraint(condition=models.Q(models.Q(('state', 'revoking'), _negated=True), ('revoke_at__isnull', False), _connector='OR'), name='credential_revoke_is_planned')],
            },
        ),
        isolate('runs_credentialchange', 'runs_credentialgrant'),
    ]
