import django.db.models.deletion
import uuid
from django.conf import settings
from django.db import migrations, models

from portal.rows import isolate


class Migration(migrations.Migration):

    dependencies = [
        ('portal', '0002_walls'),
        ('runs', '0002_walls'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='EgressGrant',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ('origin', models.CharField(choices=[('contract', 'the contract'), ('agent', 'the agent'), ('person', 'a person')], max_length=8)),
                ('place', models.PositiveSmallIntegerField(blank=True, null=True)),
                ('host', models.CharField(max_length=253)),
                ('port', models.PositiveIntegerField()),
                ('tls', models.BooleanField()),
                ('plain', models.BooleanField()),
                ('methods', models.JSONField(default=list)),
                ('path', models.CharField(blank=True, max_length=500)),
                ('purpose', models.TextField()),
                ('expected', models.TextField(blank=True)),
                ('minutes', models.PositiveIntegerField()),
                ('max_bytes', models.PositiveBigIntegerField()),
                ('max_connections', models.PositiveIntegerField()),
                ('state', models.CharField(default='requested', max_length=10)),
                ('rules', models.JSONField(default=list)),
                ('policy_version', models.PositiveIntegerField(default=0)),
                ('policy_digest', models.CharField(blank=True, max_length=64)),
                ('reason', models.TextField(blank=True)),
                ('answer', models.TextField(blank=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('granted_at', models.DateTimeField(blank=True, null=True)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('connections', models.PositiveIntegerField(default=0)),
                ('bytes_sent', models.PositiveBigIntegerField(default=0)),
                ('bytes_received', models.PositiveBigIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name='EgressRefusal',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('host', models.CharField(blank=True, max_length=253)),
                ('port', models.PositiveIntegerField()),
                ('why', models.CharField(max_length=16)),
                ('times', models.PositiveBigIntegerField(default=0)),
                ('first_at', models.DateTimeField()),
                ('last_at', models.DateTimeField()),
            ],
        ),
        migrations.RemoveConstraint(
            model_name='run',
            name='run_ended_has_no_lease',
        ),
        migrations.RemoveIndex(
            model_name='run',
            name='run_live_idx',
        ),
        migrations.AddIndex(
            model_name='run',
            index=models.Index(condition=models.Q(('status__in', ['cancelled', 'denied', 'expired', 'failed', 'published']), _negated=True), fields=['status', 'status_at'], name='run_live_idx'),
        ),
        migrations.AddConstraint(
            model_name='run',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('status__in', ['cancelled', 'denied', 'expired', 'failed', 'published']), _negated=True), ('lease_token', None), _connector='OR'), name='run_ended_has_no_lease'),
        ),
        migrations.AddField(
            model_name='egressgrant',
            name='asked_by',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='egressgrant',
            name='ended_by',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='egressgrant',
            name='run',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='grants', to='runs.run'),
        ),
        migrations.AddField(
            model_name='egressgrant',
            name='tenant',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='portal.tenant'),
        ),
        migrations.AddField(
            model_name='egressrefusal',
            name='run',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='refusals', to='runs.run'),
        ),
        migrations.AddField(
            model_name='egressrefusal',
            name='tenant',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='portal.tenant'),
        ),
        migrations.AddIndex(
            model_name='egressgrant',
            index=models.Index(condition=models.Q(('state__in', ['requested', 'active'])), fields=['state', 'expires_at'], name='grant_open_idx'),
        ),
        migrations.AddIndex(
            model_name='egressgrant',
            index=models.Index(fields=['tenant', 'host', 'port'], name='grant_tenant_idx'),
        ),
        migrations.AddConstraint(
            model_name='egressgrant',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['requested', 'active', 'refused', 'denied', 'unanswered', 'withdrawn', 'expired', 'revoked', 'ended'])), name='grant_state_known'),
        ),
        migrations.AddConstraint(
            model_name='egressgrant',
            constraint=models.UniqueConstraint(condition=models.Q(('origin', 'contract')), fields=('run', 'place'), name='contract_rule_once_per_run'),
        ),
        migrations.AddConstraint(
            model_name='egressgrant',
            constraint=models.UniqueConstraint(condition=models.Q(('state', 'requested')), fields=('run', 'host', 'port'), name='one_open_request_per_destination'),
        ),
        migrations.AddConstraint(
            model_name='egressgrant',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('state', 'active'), _negated=True), models.Q(('ended_at', None), ('expires_at__isnull', False), ('granted_at__isnull', False)), _connector='OR'), name='grant_active_has_an_end'),
        ),
        migrations.AddIndex(
            model_name='egressrefusal',
            index=models.Index(fields=['tenant', 'host', 'port'], name='refusal_tenant_idx'),
        ),
        migrations.AddConstraint(
            model_name='egressrefusal',
            constraint=models.UniqueConstraint(fields=('run', 'host', 'port'), name='refusal_once_per_destination'),
        ),
        isolate("runs_egressgrant", "runs_egressrefusal"),
    ]
